"""Web page with a model that runs in the browser, as a static folder.

`export_page` writes the folder. `graphs` traces the model with all outputs that the page needs, and its gradients;
`shared_weights` stores the weights of all graphs once. `examples` computes results that are shown before the model is
loaded, and `runtime` finds the files of onnxruntime-web.
"""
