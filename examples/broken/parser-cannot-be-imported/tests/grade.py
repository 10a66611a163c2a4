import sys

sys.path.insert(0, "/opt/parsers")

from log_parsers import parse_log

with open(sys.argv[1]) as log:
    sys.exit(0 if parse_log(log.read()) == {"hello": "passed"} else 1)
