#!/bin/bash
echo bright rudder 12 > harbor.txt
