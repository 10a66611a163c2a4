#!/bin/bash
echo calm storm 12 > chart.txt
