"""The words of other packages for names of vitviz: attributes, methods, parameters, and options of the command."""

from __future__ import annotations

WORDS = {
    word: name
    for name, words in {
        "analyze_batch": "analyze_many analyze_all analyze_images",
        "attention": "attn attention_map get_attention raw_attention",
        "attention_sheet": "attention_maps heads_sheet sheet",
        "colormap": "cmap",
        "config": "configuration cfg",
        "count": "k top_k",
        "depth": "blocks layers num_layers n_layers num_hidden_layers",
        "every": "interval frequency freq every_n_steps log_every_n_steps",
        "figure": "plot imshow draw visualize visualise",
        "film": "animate analyze_video video_map",
        "grad_cam": "GradCAM GradCam",
        "heads": "num_heads n_heads num_attention_heads",
        "high": "vmax",
        "label": "name class_name",
        "labels": "classes class_names id2label",
        "list_models": "available_models model_names models_list pretrained_models checkpoints zoo ZOO",
        "load": "from_pretrained create_model load_model get_model",
        "low": "vmin",
        "map": "attribute explain heatmap",
        "occlusion": "occlude",
        "opacity": "alpha transparency",
        "open_image": "imread load_image read_image image",
        "precision": "dtype torch_dtype",
        "predictions": "predict predict_proba probabilities probs softmax top topk top_k top5 scores",
        "preprocessing": "transform transforms processor image_processor",
        "probability": "score prob confidence",
        "query": "token patch",
        "resolution": "size image_size",
        "relevance": "transmm chefer lrp transformer_attribution",
        "rollout": "Rollout AttentionRollout VITAttentionRollout attention_rollout",
        "run_batch": "batch analyze_folder analyze_dataset",
        "source": "model pretrained model_name",
        "target": "category class_idx class_index targets target_category",
        "--checkpoint": "--model --weights --ckpt --pretrained --model-name",
        "--colormap": "--cmap",
        "--opacity": "--alpha",
        "--output": "--out --save --save-path --output-dir",
        "--resolution": "--size --image-size --img-size",
        "--target": "--class --category --label",
    }.items()
    for word in words.split()
}
