#!/bin/bash
grep flag cargo.log > storm.txt
