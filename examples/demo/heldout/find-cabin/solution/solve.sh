#!/bin/bash
grep flag cabin.log > sail.txt
