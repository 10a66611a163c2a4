#!/bin/bash
grep crew lamp.log > coast.txt
