#!/bin/bash
echo "the archive of the step is not there" >&2
exit 3
