"""Bounds: what one tenant, application or task may take, and where each rule is applied.

Paths begin at ``shuffle/taskmanager`` or at the repository. ``bounds/accounts.py`` counts what each
tenant and application holds, ``bounds/quotas.py`` turns settings into their quotas, and
``bounds/progress.py`` is the timer of all progress deadlines.

==============================  ===============================  ==================================
resource                        rule                             file
==============================  ===============================  ==================================
memory tier                     quota; fair share, reserve       store/tiers/tiers.py
..                              size of the share                store/tiers/tier_shares.py
disk tier, remote tier          quota                            store/tiers/tiers.py
region areas                    quota; limit of all together     store/region_area.py
network segments                quota                            bounds/accounts.py
..                              fewest reserved are next         shuffle/memory/segment_queue.py
..                              refused ones have their turn     shuffle/memory/refused_owners.py
..                              fair share of spare segments     shuffle/memory/distribution.py
..                              progress while others wait       bounds/segment_pressure.py
open partitions, map outputs    quota; limit of a connection     ingest/incoming_output.py
regions of a map output         limit                            ingest/region_opener.py
..                              progress of an announced region  ingest/incoming_output.py
channels                        quota; limit of a connection     serve/serving_handler.py
metadata: indexes and rows      quota                            store/shuffle_store.py
..        map attempts          quota; limit                     serve/serving_handler.py
..        slices that are read  quota                            serve/stored_slices.py
..        spilled slices        quota                            hybrid/spilled_run.py
..        reported damage       quota; limit of an application   integrity/damage_checks.py
background verification         bytes per second                 integrity/scrub.py
..        and copies            bytes per second                 bounds/rate_limit.py
connections                     quota; one kept for the driver   wiring.py
..                              limit; handshakes                transport/listener.py
..                              segment size; draining           bounds/connection_rules.py
..                              idle ones are closed             bounds/idle_connections.py
connections being made          limit of a tenant and all        serve/taskmanager_channel_opener.py
copies and moves                equal numbers, one always        replicas/application_copies.py
..                              slots, one always for each       bounds/owner_slots.py
file descriptors                reserve                          transport/descriptors.py
turns of the event loop         equal bytes a turn               transport/loop_share.py
turns at disks, remote tier     equal bytes in the queue         transport/fair_queue.py
partly received messages        limit of all together            protocol/control_memory.py
unread answers                  limit of a connection            transport/backlog.py
time of a frame                 deadline                         transport/frame_deadline.py
==============================  ===============================  ==================================
"""
