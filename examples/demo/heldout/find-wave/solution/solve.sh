#!/bin/bash
grep tide wave.log > harbor.txt
