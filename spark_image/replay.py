"""The main file for `spark-submit`, which takes files and no modules."""

import sys

from outbox_spark.__main__ import main

sys.exit(main())
