"""The relay process: claim, publish, finalise, overlapped, until it is stopped."""
