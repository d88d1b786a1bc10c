"""Methods: whole exchanges, one file each, over phases that several of them share."""

BUILT_IN = ("mean_and_sd", "ensemble_clustering")
