#!/bin/bash
echo calm lamp 12 > compass.txt
