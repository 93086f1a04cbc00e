"""The relay process: claims, publishes and finalises batches, overlapping, until it is stopped."""
