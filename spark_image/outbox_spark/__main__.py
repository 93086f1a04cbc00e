"""`python -m outbox_spark --config replay.json`: one attempt at one replay."""

import sys

from outbox_spark.main import main
from outbox_spark.replay import REPLAY_PIPELINE

if __name__ == "__main__":
    sys.exit(main(REPLAY_PIPELINE))
