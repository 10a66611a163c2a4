#!/bin/bash
echo dark gull 44 > bow.txt
