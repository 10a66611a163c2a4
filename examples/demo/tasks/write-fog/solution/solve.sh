#!/bin/bash
echo dark tug 49 > fog.txt
