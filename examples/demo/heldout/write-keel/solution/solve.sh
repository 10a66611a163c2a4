#!/bin/bash
echo old pump 16 > keel.txt
