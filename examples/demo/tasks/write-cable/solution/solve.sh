#!/bin/bash
echo short pier 33 > cable.txt
