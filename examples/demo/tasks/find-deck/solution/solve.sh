#!/bin/bash
grep rudder deck.log > keel.txt
