#!/bin/bash
echo old boat 55 > coast.txt
