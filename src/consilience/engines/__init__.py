"""Engines move messages between the coordinator and the sites; they know no method."""
