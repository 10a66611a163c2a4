#!/bin/bash
grep gull storm.log > lock.txt
