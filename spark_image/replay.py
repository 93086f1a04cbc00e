"""The main file for `spark-submit`, which takes files, not modules."""

import sys

from outbox_spark.main import main
from outbox_spark.replay import REPLAY_PIPELINE

sys.exit(main(REPLAY_PIPELINE))
