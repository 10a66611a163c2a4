#!/bin/bash
grep hull buoy.log > anchor.txt
