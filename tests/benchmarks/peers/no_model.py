"""A script of Thermocline's worker without a model: the sum of a batch's vectors is its loss.

It shows what a step costs beside the model: batches and rows to the script, their gradients back to the servers.
"""
import thermocline

with thermocline.worker() as run:
    embeddings = run.embeddings()
    for batch in run.batches():
        loss = embeddings(batch).sum() / batch.size
        loss.backward()
        run.step(loss)
    run.evaluate(lambda batch: embeddings(batch).flatten(1).sum(1))
