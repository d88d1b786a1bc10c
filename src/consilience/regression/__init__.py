"""One regression over the rows of all sites, with the inference of the pooled fit.

Sources: McCullagh and Nelder (1989), generalised linear models; White (1980), MacKinnon and White
(1985), Liang and Zeger (1986), robust errors; Cochran (1954), Higgins and Thompson (2002),
heterogeneity. Public: `PooledRegression`.
"""
