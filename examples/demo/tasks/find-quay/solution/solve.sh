#!/bin/bash
grep sail quay.log > rudder.txt
