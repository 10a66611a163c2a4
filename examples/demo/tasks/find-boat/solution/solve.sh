#!/bin/bash
grep rope boat.log > lantern.txt
