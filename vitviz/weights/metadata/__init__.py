"""Configurations, preprocessing and labels in the files beside the tensors; every entry is read or refused."""
