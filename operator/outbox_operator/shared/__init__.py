"""What every kind shares: vocabulary, values and rules. Pure: no IO, and no kind is imported."""
