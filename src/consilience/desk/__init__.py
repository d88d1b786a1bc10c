"""The steward's desk: pages in a browser of the site's own machine, over what the commands do."""
