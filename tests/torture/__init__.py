"""`make torture`: faults against the real command line and server, with a table of results.

runner.py            runs cases in time-limited processes; prints, saves and publishes the results
scene.py             folder and commands of a case
training_cases.py    kills, signals, full disks, several processes
checkpoint_cases.py  torn, corrupt and hostile checkpoints
data_cases.py        hostile and odd images, tables and archives
serving_cases.py     bombs, slow clients, overload, shutdown
"""
