"""Contingency tables: whether two categories are associated, over all sites and within them.

Sources: Pearson (1900), chi-square test of a table; Cramér (1946), V; Landis, Heyman and Koch
(1978), the Cochran-Mantel-Haenszel test of tables of any size. Public: `ContingencyTable`.
"""
