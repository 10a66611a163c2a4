#!/bin/bash
grep pump pier.log > shell.txt
