#!/bin/bash
echo cold storm 34 > crew.txt
