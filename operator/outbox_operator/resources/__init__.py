"""The two custom resources: what they say, how they are checked, and the CRDs made from them."""
