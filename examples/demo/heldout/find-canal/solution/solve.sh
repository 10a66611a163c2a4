#!/bin/bash
grep bow canal.log > keel.txt
