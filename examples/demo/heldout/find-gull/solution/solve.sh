#!/bin/bash
grep sail gull.log > island.txt
