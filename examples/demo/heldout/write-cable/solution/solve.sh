#!/bin/bash
echo early rope 29 > cable.txt
