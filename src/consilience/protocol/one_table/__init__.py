"""What studies of one site's table share: rows that are held out, and what is told of them."""
