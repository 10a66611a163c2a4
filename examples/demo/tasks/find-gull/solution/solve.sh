#!/bin/bash
grep rudder gull.log > chain.txt
