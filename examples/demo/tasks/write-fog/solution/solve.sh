#!/bin/bash
echo old winch 38 > fog.txt
