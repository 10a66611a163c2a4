#!/bin/bash
grep beacon berth.log > boat.txt
