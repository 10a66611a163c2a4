#!/bin/bash
echo quiet coast 26 > sail.txt
