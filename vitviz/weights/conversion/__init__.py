"""From the tensors of any family to the network's: canonical keys, and converters that check every tensor."""
