"""Description of the columns of a study, over all sites and by site: Table 1.

Sources: Hyndman and Fan (1996), quantiles; Austin (2009), Yang and Dalton (2012), standardised
differences. Public: `Describe`.
"""
