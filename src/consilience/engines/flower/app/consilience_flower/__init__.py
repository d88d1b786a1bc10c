"""The Flower app of every study."""
