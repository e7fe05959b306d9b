"""What stands beside the tensors: configurations, preprocessing and labels, each read whole or refused."""
