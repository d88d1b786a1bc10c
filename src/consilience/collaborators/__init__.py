"""Whom should I collaborate with? Groups of sites with one relationship of x and y.

Paper: Ye, Ghanadan and Ding, *Meta Clustering for Collaborative Learning* (Journal of
Computational and Graphical Statistics). Public: `MetaClustering` (the study; its ladder is in
``collaborators.protocol``).
"""
